SELECT carrier
FROM flights
ORDER BY carrier
