"""What a process runs on: settings, Java, jars and the Spark session."""
