"""What the DAGs share: the catalogue, the commands, the assets, the notes and who is notified of a failure."""
