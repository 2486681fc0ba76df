SELECT f.carrier FROM flights f FULL JOIN airlines a ON f.carrier = a.carrier
