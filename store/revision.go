package store

import (
	"time"
)

// Revision identifies a state of node.db.
type Revision struct {
	// File is the time when the file was made. After SetAside a new file is made.
	File time.Time `json:"file"`
	// Number grows with every transaction that wrote.
	Number uint64 `json:"number"`
}

// Covers reports whether r and earlier are revisions of the same file, and r is not older.
func (r Revision) Covers(earlier Revision) bool {
	return r.File.Equal(earlier.File) && r.Number >= earlier.Number
}

// Revision returns the revision that an Update makes, or that a View reads. Without
// a file it is zero.
func (tx *Tx) Revision() (Revision, error) {
	info, err := tx.Info()
	if err != nil || tx.b == nil {
		return Revision{}, err
	}
	return Revision{File: info.Created, Number: uint64(tx.b.ID())}, nil
}

// Seen returns the newest revision that this Store's transactions read or made, without reading the
// file, or false if none is known. The revision includes all Updates of this Store.
func (s *Store) Seen() (Revision, bool) {
	info, number, ok := s.idle.Seen()
	return Revision{File: info.Created, Number: number}, ok
}
