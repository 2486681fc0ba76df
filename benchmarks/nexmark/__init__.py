"""Nexmark: an online auction as a stream of persons, auctions and bids, and the queries asked of it."""
