"""Airflow on this machine, in a separate environment."""
