SELECT f.at FROM flights f
JOIN alerts FOR SYSTEM_TIME AS OF PROCTIME() AS a ON f.carrier = a.carrier
