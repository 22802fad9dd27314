"""What is declared: datasets, their schemas and SQL, expectations, fingerprints, and what a commit says of itself."""
