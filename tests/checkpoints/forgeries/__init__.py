"""A campaign of damaged and forged files, over all formats that Shardwise reads."""
