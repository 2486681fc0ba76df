SELECT B.auction, B.bidder, B.price, B."dateTime", S.value FROM bid B JOIN side_input S ON B.auction % 10000 = S.key
