"""Ways into the log beside files and Kafka: receivers of other protocols, and capture of databases."""
