SELECT auction, bidder, price, channel, url, "dateTime", extra FROM bid
QUALIFY ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY "dateTime" DESC) = 1
