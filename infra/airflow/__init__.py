"""Airflow on this machine, in an environment of its own."""
