-- meaning: NEXMark 8, monitor new users: who opened an auction in the ten seconds of registering.
SELECT p.id, p.name, p.window_start
FROM gold.q8_people AS p
JOIN gold.q8_sellers AS s ON p.id = s.seller AND p.window_start = s.window_start
