package etcd

// The messages of etcd's API (etcdserverpb, mvccpb) in the form of its gateway:
// 64-bit numbers are strings, bytes are base64, zeros are left out.

type header struct {
	ClusterID uint64 `json:"cluster_id,string"`
	Revision  int64  `json:"revision,string"`
	// RaftTerm grows with each election, and starts again in a restored store.
	RaftTerm uint64 `json:"raft_term,string"`
}

type keyValue struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	CreateRevision int64  `json:"create_revision,string"`
	ModRevision    int64  `json:"mod_revision,string"`
	Lease          int64  `json:"lease,string"`
}

type rangeRequest struct {
	Key       []byte `json:"key"`
	RangeEnd  []byte `json:"range_end,omitempty"`
	Limit     int64  `json:"limit,omitempty,string"`
	Revision  int64  `json:"revision,omitempty,string"`
	CountOnly bool   `json:"count_only,omitempty"`
}

type rangeResponse struct {
	Header header     `json:"header"`
	KVs    []keyValue `json:"kvs"`
	More   bool       `json:"more"`
	Count  int64      `json:"count,string"`
}

// compare has exactly one of its values. The others are nil.
type compare struct {
	Key            []byte `json:"key"`
	RangeEnd       []byte `json:"range_end,omitempty"`
	Target         string `json:"target"`
	Result         string `json:"result"`
	CreateRevision *int64 `json:"create_revision,omitempty,string"`
	ModRevision    *int64 `json:"mod_revision,omitempty,string"`
}

// unchanged returns the condition that a key has a revision, or does not exist if that is 0.
func unchanged(key []byte, revision int64) compare {
	if revision == 0 {
		return compare{Key: key, Result: "EQUAL", Target: "CREATE", CreateRevision: &revision}
	}
	return compare{Key: key, Result: "EQUAL", Target: "MOD", ModRevision: &revision}
}

type putRequest struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
	Lease int64  `json:"lease,omitempty,string"`
}

type deleteRequest struct {
	Key      []byte `json:"key"`
	RangeEnd []byte `json:"range_end,omitempty"`
}

type operation struct {
	Put    *putRequest    `json:"request_put,omitempty"`
	Delete *deleteRequest `json:"request_delete_range,omitempty"`
}

type txnRequest struct {
	Compare []compare   `json:"compare"`
	Success []operation `json:"success"`
}

type txnResponse struct {
	Header    header `json:"header"`
	Succeeded bool   `json:"succeeded"`
}

type leaseRequest struct {
	ID  int64 `json:"ID,omitempty,string"`
	TTL int64 `json:"TTL,omitempty,string"`
}

type leaseResponse struct {
	ID    int64  `json:"ID,string"`
	TTL   int64  `json:"TTL,string"`
	Error string `json:"error"`
}

type keepAliveResponse struct {
	Result *leaseResponse `json:"result"`
	Error  *failure       `json:"error"`
}

type watchRequest struct {
	Create watchCreate `json:"create_request"`
}

type watchCreate struct {
	Key            []byte `json:"key"`
	RangeEnd       []byte `json:"range_end"`
	StartRevision  int64  `json:"start_revision,string"`
	ProgressNotify bool   `json:"progress_notify"`
	Fragment       bool   `json:"fragment"`
}

// watchMessage is one message of a watch's stream: a result, or the reason of its
// end.
type watchMessage struct {
	Result *watchResponse `json:"result"`
	Error  *failure       `json:"error"`
}

type watchResponse struct {
	Header          header  `json:"header"`
	Created         bool    `json:"created"`
	Canceled        bool    `json:"canceled"`
	CompactRevision int64   `json:"compact_revision,string"`
	CancelReason    string  `json:"cancel_reason"`
	Fragment        bool    `json:"fragment"`
	Events          []event `json:"events"`
}

type event struct {
	// Type is DELETE or PUT; PUT is left out.
	Type string   `json:"type"`
	KV   keyValue `json:"kv"`
}

type authRequest struct {
	Name     string `json:"name"`
	Password string `json:"password"`
}

type authResponse struct {
	Token string `json:"token"`
}
