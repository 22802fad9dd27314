"""What the DAGs share: the catalogue, the commands, the assets and who is notified of a failure."""
