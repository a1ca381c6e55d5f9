package store

import "time"

// Revision tells one state of node.db from another.
type Revision struct {
	// File is when the file was made: it is another one after SetAside.
	File time.Time `json:"file"`
	// Number grows with every transaction that wrote.
	Number uint64 `json:"number"`
}

// Covers tells whether a state holds all that an earlier one of the same file
// did.
func (r Revision) Covers(earlier Revision) bool {
	return r.File.Equal(earlier.File) && r.Number >= earlier.Number
}

// Revision is the transaction's own in an Update, and the last one's in a View.
// Without a file it is zero.
func (tx *Tx) Revision() (Revision, error) {
	info, err := tx.Info()
	if err != nil || tx.b == nil {
		return Revision{}, err
	}
	return Revision{File: info.Created, Number: uint64(tx.b.ID())}, nil
}

// Seen is the newest revision that this Store's transactions saw or made, without
// looking at the file; false while that is not known. All that its own Updates
// stored is in it.
func (s *Store) Seen() (Revision, bool) {
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	o := s.idle.open
	if o == nil || o.memo == nil || o.memo.info == nil {
		return Revision{}, false
	}
	info, err := o.memo.readInfo(nil)
	return Revision{File: info.Created, Number: o.meta.txid}, err == nil
}
