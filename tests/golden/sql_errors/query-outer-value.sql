SELECT f.carrier FROM flights AS f
WHERE f.delay > (SELECT max(a.level + f.delay) FROM alerts AS a)
