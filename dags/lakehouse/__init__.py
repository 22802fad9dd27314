"""What the DAGs share: the catalogue, the commands, the assets and who is told of a failure."""
