SELECT carrier FROM flights AS f
WHERE EXISTS (SELECT count(*) FROM alerts AS a WHERE a.carrier = f.carrier)
