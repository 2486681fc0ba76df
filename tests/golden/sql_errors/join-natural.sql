SELECT f.carrier FROM flights f NATURAL JOIN alerts a
