"""Pure functions of DataFrames: frames in, a frame out. Nothing here reads, writes, collects or looks at the clock."""
