package cloudsim

import (
	"net/http"
	"strconv"
	"strings"
)

// Parts that AWS, Alibaba and Tencent share.
const (
	metaData  = "/latest/"
	dataPath  = "/latest/meta-data"
	tokenPath = "/latest/api/token"
)

const (
	awsName  = "aws"
	awsToken = "X-Aws-Ec2-Metadata-Token"
)

// aws is IMDSv2: every request needs a token.
func aws() *provider {
	return &provider{name: awsName, at: []string{"169.254.169.254:80"}, below: []string{metaData}, serve: serveAWS}
}

func serveAWS(q *query) reply {
	if q.path == tokenPath {
		switch {
		case q.Method != http.MethodPut:
			return page(http.StatusMethodNotAllowed)
		case forwarded(q.Header, "X-Forwarded-For"):
			return page(http.StatusForbidden)
		}
		return q.tokens.issue(q.Request, awsToken+"-Ttl-Seconds").with("Server", "EC2ws")
	}
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	if !q.tokens.valid(q.Header.Get(awsToken), q.view.tokenOnce) {
		return page(http.StatusUnauthorized).with("Server", "EC2ws")
	}
	rest, ok := strings.CutPrefix(q.path, dataPath)
	if !ok {
		return page(http.StatusNotFound)
	}
	return awsTree(q.view).reply(strings.TrimPrefix(rest, "/")).with("Server", "EC2ws")
}

func awsTree(v *view) tree {
	t := tree{
		"instance-id": "i-0123456789abcdef0", "instance-type": "m5.large",
		"placement/availability-zone": "eu-west-1a", "placement/region": "eu-west-1",
	}
	for i := range v.nics {
		n := &v.nics[i]
		mac := v.write(n, macColons)
		four, six := subnet(n, false), subnet(n, true)
		if n.Primary {
			t.put("mac", mac)
			t.put("local-ipv4", first(held(four)))
			t.put("ipv6", first(held(six)))
		}
		at := "network/interfaces/macs/" + mac + "/"
		t.put(at+"mac", mac)
		t.put(at+"device-number", strconv.Itoa(n.Device))
		t.put(at+"interface-id", id("eni", n, i))
		t.put(at+"owner-id", "123456789012")
		t.put(at+"subnet-id", id("subnet", n, i))
		t.put(at+"vpc-id", id("vpc", n, 0))
		t.put(at+"security-group-ids", id("sg", n, 0))
		t.put(at+"local-ipv4s", lines(held(four)))
		t.put(at+"ipv4-prefix", lines(ranges(four)))
		t.put(at+"ipv6s", lines(held(six)))
		t.put(at+"ipv6-prefix", lines(ranges(six)))
		t.put(at+"subnet-ipv4-cidr-block", prefixText(four))
		t.put(at+"subnet-ipv6-cidr-blocks", prefixText(six))
		t.put(at+"vpc-ipv4-cidr-block", first(ofFamily(n.Network, false)))
		t.put(at+"vpc-ipv4-cidr-blocks", lines(ofFamily(n.Network, false)))
		t.put(at+"vpc-ipv6-cidr-blocks", lines(ofFamily(n.Network, true)))
	}
	return t
}
