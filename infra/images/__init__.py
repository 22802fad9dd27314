"""The images of the lakehouse, built and tried on a machine without a container engine.

python -m infra.images      # both, and the year's first month in them
"""
