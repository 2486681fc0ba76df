SELECT f.carrier FROM flights AS f
WHERE f.delay IN (SELECT a.level + f.delay FROM alerts AS a)
