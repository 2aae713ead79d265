"""One rank's share of a model that many ranks hold, run alone on one device: what its kernels take, without its links."""
