// Package nearest finds the word that somebody meant who wrote another one.
package nearest

// maxEdits is how far a word may be from what was meant.
const maxEdits = 3

// Index returns the index of the known word that is most like word, the first
// of several, or -1 if none is like it. It compares bytes.
func Index(word string, known []string) int {
	best, distance := -1, maxEdits+1
	for i, candidate := range known {
		if d := edits(candidate, word); d < distance {
			best, distance = i, d
		}
	}
	return best
}

// edits counts the single-byte edits between two short words.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			previous, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, previous+cost)
		}
	}
	return row[len(b)]
}
