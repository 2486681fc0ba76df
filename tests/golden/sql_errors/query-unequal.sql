SELECT f.carrier FROM flights f
WHERE f.delay > (SELECT max(a.level) FROM alerts a WHERE a.carrier = f.carrier AND a.at < f.at)
