SELECT f.at, a.name FROM flights f
JOIN airlines FOR SYSTEM_TIME AS OF f.at AS a ON f.carrier = a.carrier
