-- Pass through: what a row costs by itself.
SELECT auction, bidder, price, dateTime, extra FROM bid
