-- meaning: NEXMark 3, local item suggestion: who sells in some states in category 10, and what.
SELECT p.name, p.city, p.state, a.id, a.seller
FROM silver.auctions AS a
JOIN silver.people AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')
