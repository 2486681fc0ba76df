SELECT f.carrier FROM flights f
JOIN airlines a ON f.carrier = a.carrier AND a.rank > 1
