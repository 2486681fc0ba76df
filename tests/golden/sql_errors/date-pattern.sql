SELECT carrier,
       DATE_FORMAT(at, 'yyyy-QQ') AS q
FROM flights
