SELECT 'abc FROM flights
