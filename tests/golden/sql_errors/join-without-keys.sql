SELECT f.carrier FROM flights f
JOIN alerts a ON f.delay > a.level
