"""Run work on shards of the data: on threads of this process, or on a Dask cluster."""
