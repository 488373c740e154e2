"""xfstests on labs: the same list with the claim off and on, and what differs (`labs/kernels/lab test --xfstests`)."""
