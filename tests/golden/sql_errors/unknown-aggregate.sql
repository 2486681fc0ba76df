SELECT carrier, kurtosis(delay) AS n FROM flights GROUP BY carrier
