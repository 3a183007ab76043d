"""What Atoll is measured against, one file each, all behind `peer.Peer`."""
