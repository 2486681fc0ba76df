SELECT delay
FROM flights f JOIN alerts a ON f.carrier = a.carrier
WHERE carrier = 'A'
