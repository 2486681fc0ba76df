SELECT f.carrier, a.level FROM flights AS f
ASOF JOIN alerts AS a ON f.carrier = a.carrier AND f.at <= a.at
