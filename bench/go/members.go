// Members of consumer groups, one connection each, with the intervals of Java's defaults (a
// heartbeat every 3 s, a commit every 5 s) and the request versions of Java 3.9.
//
// The program has three steps: all members connect; all join; after a warm-up, latencies are
// measured. Each step starts when a line is read from stdin, and prints a line of JSON when it has
// ended.
//
// Latency is measured from just before a request is written to the time at which the kernel
// received the last byte of its reply (SO_TIMESTAMPNS), so it does not include the delays of this
// program.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	heartbeatEvery = 3 * time.Second
	commitEvery    = 5 * time.Second

	sessionMs   = 45_000
	rebalanceMs = 300_000
	patience    = 2 * time.Minute
	// Java's retry.backoff.ms.
	pause = 100 * time.Millisecond

	coordinatorLoads    = 14
	coordinatorMissing  = 15
	notCoordinator      = 16
	illegalGeneration   = 22
	unknownMember       = 25
	rebalanceInProgress = 27
	memberIDIsRequired  = 79
)

var protocols = []string{"range", "cooperative-sticky"}

// Writes a message in the flexible encoding of KIP-482.
type writer struct{ bytes []byte }

func (w *writer) i8(v int8)   { w.bytes = append(w.bytes, byte(v)) }
func (w *writer) i16(v int16) { w.bytes = binary.BigEndian.AppendUint16(w.bytes, uint16(v)) }
func (w *writer) i32(v int32) { w.bytes = binary.BigEndian.AppendUint32(w.bytes, uint32(v)) }
func (w *writer) i64(v int64) { w.bytes = binary.BigEndian.AppendUint64(w.bytes, uint64(v)) }
func (w *writer) tags()       { w.bytes = append(w.bytes, 0) }
func (w *writer) null()       { w.bytes = append(w.bytes, 0) }
func (w *writer) count(n int) { w.bytes = binary.AppendUvarint(w.bytes, uint64(n+1)) }
func (w *writer) blob(v []byte) {
	w.count(len(v))
	w.bytes = append(w.bytes, v...)
}
func (w *writer) text(v string) { w.blob([]byte(v)) }

// A string in the encoding before KIP-482, as in the consumer protocol's own messages.
func (w *writer) plain(v string) {
	w.i16(int16(len(v)))
	w.bytes = append(w.bytes, v...)
}

// Reads a message. `broken` is set if it ends early.
type reader struct {
	bytes  []byte
	broken bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.bytes) {
		r.broken, r.bytes = true, nil
		return make([]byte, max(min(n, 8), 0))
	}
	taken := r.bytes[:n]
	r.bytes = r.bytes[n:]
	return taken
}
func (r *reader) i16() int16 { return int16(binary.BigEndian.Uint16(r.take(2))) }
func (r *reader) i32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }
func (r *reader) count() int {
	v, n := binary.Uvarint(r.bytes)
	r.take(max(n, 0))
	r.broken = r.broken || n <= 0
	return int(v) - 1
}
func (r *reader) blob() []byte {
	n := r.count()
	if n < 0 {
		return nil
	}
	return r.take(n)
}
func (r *reader) text() string { return string(r.blob()) }
func (r *reader) tags()        { r.take(r.count() + 1) }

// A connection that records the kernel's receive time of the last read.
type stamped struct {
	raw syscall.RawConn
	oob [128]byte
	at  time.Time
}

func (s *stamped) Read(into []byte) (int, error) {
	var n, oobn int
	var failure error
	waited := s.raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, failure = syscall.Recvmsg(int(fd), into, s.oob[:], 0)
		return failure != syscall.EAGAIN && failure != syscall.EINTR
	})
	if waited != nil {
		return 0, waited
	}
	if failure != nil {
		return 0, failure
	}
	if n == 0 {
		return 0, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(s.oob[:oobn])
	if err != nil {
		return 0, err
	}
	for _, one := range messages {
		if one.Header.Level == syscall.SOL_SOCKET && one.Header.Type == syscall.SCM_TIMESTAMPNS {
			seconds := binary.NativeEndian.Uint64(one.Data)
			nanos := binary.NativeEndian.Uint64(one.Data[8:])
			s.at = time.Unix(int64(seconds), int64(nanos))
		}
	}
	return n, nil
}

type kind int

const (
	heartbeat kind = iota
	commit
	kinds
)

type request struct {
	kind kind
	at   time.Time
	late time.Duration
}

type latency struct {
	at   time.Time
	took time.Duration
	late time.Duration
}

type member struct {
	load       *load
	group      string
	client     string
	address    string
	connection net.Conn
	stamps     *stamped
	replies    *bufio.Reader
	sequence   int32
	id         string
	generation int32
	partitions []int32
	position   int64
	// From the start of the join step until the assignment was received.
	joined time.Duration
	seen   [kinds][]latency
}

type load struct {
	topic      string
	partitions int
	members    []*member
	inside     atomic.Int64
	everyone   chan struct{}
	joinings   atomic.Int64
	over       chan struct{}
}

func (m *member) connect(address string) error {
	connection, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	m.address = address
	raw, err := connection.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	if err = errors.Join(err, refused); err != nil {
		return err
	}
	m.connection, m.stamps = connection, &stamped{raw: raw}
	m.replies = bufio.NewReaderSize(m.stamps, 512)
	hello := writer{}
	hello.text("bench-members")
	hello.text("1")
	hello.tags()
	reply, err := m.ask(18, 3, hello)
	if err != nil {
		return err
	}
	if code := reply.i16(); code != 0 {
		return fmt.Errorf("ApiVersions: error %d", code)
	}
	about := writer{}
	about.count(1)
	about.bytes = append(about.bytes, make([]byte, 16)...)
	about.text(m.load.topic)
	about.tags()
	about.i8(0)
	about.i8(0)
	about.tags()
	_, err = m.ask(3, 12, about)
	return err
}

func (m *member) write(key, version int16, body writer) error {
	m.sequence++
	head := writer{make([]byte, 4, 64+len(body.bytes))}
	head.i16(key)
	head.i16(version)
	head.i32(m.sequence)
	head.plain(m.client)
	head.tags()
	frame := append(head.bytes, body.bytes...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	_, err := m.connection.Write(frame)
	return err
}

// The next reply, after its correlation id.
func (m *member) read() (*reader, error) {
	var size [4]byte
	if _, err := io.ReadFull(m.replies, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(m.replies, frame); err != nil {
		return nil, err
	}
	return &reader{bytes: frame[4:]}, nil
}

// Sends a request and reads its reply. Only ApiVersions replies have a header without tags.
func (m *member) ask(key, version int16, body writer) (*reader, error) {
	if err := m.connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := m.write(key, version, body); err != nil {
		return nil, err
	}
	reply, err := m.read()
	if err == nil && key != 18 {
		reply.tags()
	}
	return reply, errors.Join(err, m.connection.SetDeadline(time.Time{}))
}

// Finds the group's coordinator. If it is another broker, the connection is replaced by one to it.
func (m *member) findCoordinator() error {
	body := writer{}
	body.i8(0)
	body.count(1)
	body.text(m.group)
	body.tags()
	for {
		reply, err := m.ask(10, 4, body)
		if err != nil {
			return err
		}
		reply.i32()
		reply.count()
		reply.text()
		reply.i32()
		host := reply.text()
		address := net.JoinHostPort(host, strconv.Itoa(int(reply.i32())))
		code := reply.i16()
		if code == 0 && !reply.broken {
			if address == m.address {
				return nil
			}
			m.connection.Close()
			return m.connect(address)
		}
		if code != coordinatorMissing {
			return fmt.Errorf("FindCoordinator: error %d", code)
		}
		time.Sleep(pause)
	}
}

// The subscription of a member: the topics that it reads (version 1 of the consumer protocol).
func (m *member) subscription() []byte {
	told := writer{}
	told.i16(1)
	told.i32(1)
	told.plain(m.load.topic)
	told.i32(-1)
	told.i32(0)
	return told.bytes
}

// Joins the group's generation and receives the assigned partitions.
func (m *member) join() error {
	m.load.joinings.Add(1)
	for {
		code, members, err := m.joinOnce()
		if err != nil {
			return err
		}
		switch code {
		case memberIDIsRequired, rebalanceInProgress:
			continue
		case unknownMember:
			m.id = ""
			continue
		case coordinatorLoads, coordinatorMissing, notCoordinator:
			time.Sleep(pause)
			if err := m.findCoordinator(); err != nil {
				return err
			}
			continue
		case 0:
		default:
			return fmt.Errorf("JoinGroup: error %d", code)
		}
		code, err = m.sync(members)
		if err != nil {
			return err
		}
		switch code {
		case 0:
			return m.fetchOffsets()
		case rebalanceInProgress, illegalGeneration, unknownMember, notCoordinator:
			continue
		}
		return fmt.Errorf("SyncGroup: error %d", code)
	}
}

func (m *member) joinOnce() (int16, []string, error) {
	body := writer{}
	body.text(m.group)
	body.i32(sessionMs)
	body.i32(rebalanceMs)
	body.text(m.id)
	body.null()
	body.text("consumer")
	body.count(len(protocols))
	for _, name := range protocols {
		body.text(name)
		body.blob(m.subscription())
		body.tags()
	}
	body.null()
	body.tags()
	reply, err := m.ask(11, 9, body)
	if err != nil {
		return 0, nil, err
	}
	reply.i32()
	code := reply.i16()
	m.generation = reply.i32()
	reply.blob()
	reply.blob()
	reply.text()
	reply.take(1)
	m.id = reply.text()
	var members []string
	for n := reply.count(); n > 0; n-- {
		members = append(members, reply.text())
		reply.blob()
		reply.blob()
		reply.tags()
	}
	if reply.broken {
		return 0, nil, errors.New("JoinGroup: the reply ends early")
	}
	return code, members, nil
}

// SyncGroup. The leader, which alone has `members`, assigns each member the same number of
// partitions.
func (m *member) sync(members []string) (int16, error) {
	body := writer{}
	body.text(m.group)
	body.i32(m.generation)
	body.text(m.id)
	body.null()
	body.text("consumer")
	body.text(protocols[0])
	body.count(len(members))
	for n, id := range members {
		body.text(id)
		given := writer{}
		given.i16(1)
		given.i32(1)
		given.plain(m.load.topic)
		first, last := n*m.load.partitions/len(members), (n+1)*m.load.partitions/len(members)
		given.i32(int32(last - first))
		for partition := first; partition < last; partition++ {
			given.i32(int32(partition))
		}
		given.i32(-1)
		body.blob(given.bytes)
		body.tags()
	}
	body.tags()
	reply, err := m.ask(14, 5, body)
	if err != nil {
		return 0, err
	}
	reply.i32()
	code := reply.i16()
	reply.blob()
	reply.blob()
	mine := reader{bytes: reply.blob()}
	if code != 0 {
		return code, nil
	}
	mine.i16()
	mine.i32()
	mine.take(int(mine.i16()))
	m.partitions = m.partitions[:0]
	for n := mine.i32(); n > 0 && !mine.broken; n-- {
		m.partitions = append(m.partitions, mine.i32())
	}
	if mine.broken || reply.broken {
		return 0, errors.New("SyncGroup: the assignment ends early")
	}
	return code, nil
}

func (m *member) fetchOffsets() error {
	body := writer{}
	body.count(1)
	body.text(m.group)
	body.text(m.id)
	body.i32(m.generation)
	body.count(1)
	body.text(m.load.topic)
	body.count(len(m.partitions))
	for _, partition := range m.partitions {
		body.i32(partition)
	}
	body.tags()
	body.tags()
	body.i8(1)
	body.tags()
	reply, err := m.ask(9, 9, body)
	if err != nil {
		return err
	}
	reply.i32()
	if n := reply.count(); n != 1 || reply.broken {
		return fmt.Errorf("OffsetFetch: %d groups", n)
	}
	return nil
}

func (m *member) heartbeat() writer {
	body := writer{}
	body.text(m.group)
	body.i32(m.generation)
	body.text(m.id)
	body.null()
	body.tags()
	return body
}

func (m *member) commit() writer {
	m.position += 500
	body := writer{}
	body.text(m.group)
	body.i32(m.generation)
	body.text(m.id)
	body.null()
	body.count(1)
	body.text(m.load.topic)
	body.count(len(m.partitions))
	for _, partition := range m.partitions {
		body.i32(partition)
		body.i64(m.position)
		body.i32(0)
		body.text("")
		body.tags()
	}
	body.tags()
	body.tags()
	return body
}

// The error code of a reply, 0 if there is none.
func codeOf(what kind, reply *reader) int16 {
	reply.tags()
	reply.i32()
	if what == heartbeat {
		return reply.i16()
	}
	for topics := reply.count(); topics > 0 && !reply.broken; topics-- {
		reply.text()
		for partitions := reply.count(); partitions > 0 && !reply.broken; partitions-- {
			reply.i32()
			if code := reply.i16(); code != 0 {
				return code
			}
			reply.tags()
		}
		reply.tags()
	}
	return 0
}

// Sends heartbeats and commits when they are due, without waiting for replies. Returns when the
// group rebalances or moves to another coordinator, or when the measurement has ended.
func (m *member) stay(random *rand.Rand) error {
	asked := make(chan request, 64)
	rebalances, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- m.listen(asked, rebalances) }()
	now := time.Now()
	due := [kinds]time.Time{
		now.Add(time.Duration(random.Int63n(int64(heartbeatEvery)))),
		now.Add(time.Duration(random.Int63n(int64(commitEvery)))),
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := heartbeat
		if due[commit].Before(due[heartbeat]) {
			next = commit
		}
		timer.Reset(time.Until(due[next]))
		select {
		case <-timer.C:
		case failure := <-ended:
			return failure
		case <-rebalances:
			close(asked)
			return <-ended
		case <-m.load.over:
			close(asked)
			return <-ended
		}
		key, version, body, period := int16(12), int16(4), m.heartbeat, heartbeatEvery
		if next == commit {
			key, version, body, period = 8, 9, m.commit, commitEvery
		}
		written := body()
		began := time.Now()
		if err := m.write(key, version, written); err != nil {
			return err
		}
		asked <- request{next, began, began.Sub(due[next])}
		due[next] = due[next].Add(period)
	}
}

// Reads the replies in the order of the requests, until `asked` is closed.
func (m *member) listen(asked <-chan request, rebalances chan<- struct{}) error {
	isNotified := false
	for one := range asked {
		reply, err := m.read()
		if err != nil {
			return err
		}
		took := m.stamps.at.Sub(one.at)
		switch code := codeOf(one.kind, reply); {
		case reply.broken:
			return errors.New("a reply ends early")
		case code == 0:
			m.seen[one.kind] = append(m.seen[one.kind], latency{one.at, took, one.late})
		case code == rebalanceInProgress || code == illegalGeneration || code == unknownMember ||
			code == notCoordinator:
			if !isNotified {
				isNotified = true
				close(rebalances)
			}
		default:
			return fmt.Errorf("error %d", code)
		}
	}
	return nil
}

func (m *member) live(seed int64) error {
	random := rand.New(rand.NewSource(seed))
	began := time.Now()
	for {
		if err := m.findCoordinator(); err != nil {
			return err
		}
		if err := m.join(); err != nil {
			return err
		}
		if m.joined == 0 {
			m.joined = time.Since(began)
		}
		if m.load.inside.Add(1) == int64(len(m.load.members)) {
			select {
			case m.load.everyone <- struct{}{}:
			default:
			}
		}
		if err := m.stay(random); err != nil {
			return err
		}
		select {
		case <-m.load.over:
			return nil
		default:
			m.load.inside.Add(-1)
		}
	}
}

// Percentiles of durations, in ms.
type figures struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func figuresOf(took []time.Duration) figures {
	if len(took) == 0 {
		return figures{}
	}
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))].Nanoseconds()) / 1e6
	}
	return figures{len(took), at(0.5), at(0.99), at(1)}
}

// Percentiles of requests sent in this interval: latencies by kind, and how late requests were
// sent.
func (l *load) between(begin, end time.Time) (found [kinds]figures, late figures) {
	var took [kinds][]time.Duration
	var lates []time.Duration
	for _, m := range l.members {
		for what, all := range m.seen {
			for _, one := range all {
				if !one.at.Before(begin) && one.at.Before(end) {
					took[what] = append(took[what], one.took)
					lates = append(lates, one.late)
				}
			}
		}
	}
	for what := range took {
		found[what] = figuresOf(took[what])
	}
	return found, figuresOf(lates)
}

// Runs `do` for all members in parallel. The first failure ends the program.
func (l *load) each(do func(int, *member) error) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Add(len(l.members))
	for number, one := range l.members {
		go func() {
			defer all.Done()
			if err := do(number, one); err != nil {
				log.Fatalf("%s of %s: %v", one.client, one.group, err)
			}
		}()
	}
	return &all
}

func say(step any) {
	if err := json.NewEncoder(os.Stdout).Encode(step); err != nil {
		log.Fatal(err)
	}
}

func main() {
	at := flag.String("at", "", "host:port of each broker, separated by commas")
	topic := flag.String("topic", "", "topic that all groups read")
	partitions := flag.Int("partitions", 8, "partitions of the topic")
	groups := flag.Int("groups", 1000, "number of groups")
	size := flag.Int("members", 4, "members per group")
	warm := flag.Duration("warm", 10*time.Second, "warm-up before the measurement")
	window := flag.Duration("window", 60*time.Second, "duration of the measurement")
	flag.Parse()

	l := &load{
		topic:      *topic,
		partitions: *partitions,
		everyone:   make(chan struct{}, 1),
		over:       make(chan struct{}),
	}
	for group := range *groups {
		for number := range *size {
			l.members = append(l.members, &member{
				load:   l,
				group:  fmt.Sprintf("bench-group-%d", group),
				client: fmt.Sprintf("bench-member-%d", number),
			})
		}
	}
	lines := bufio.NewScanner(os.Stdin)

	lines.Scan()
	began := time.Now()
	brokers := strings.Split(*at, ",")
	l.each(func(number int, m *member) error {
		return m.connect(brokers[number%len(brokers)])
	}).Wait()
	say(map[string]float64{"connected": time.Since(began).Seconds()})

	lines.Scan()
	began = time.Now()
	lives := l.each(func(number int, m *member) error { return m.live(int64(number)) })
	<-l.everyone
	took := time.Since(began).Seconds()
	joined := []time.Duration{}
	for _, m := range l.members {
		joined = append(joined, m.joined)
	}
	say(map[string]any{"joined": took, "join": figuresOf(joined), "joinings": l.joinings.Load()})

	lines.Scan()
	time.Sleep(*warm)
	begin := time.Now()
	say(map[string]bool{"begins": true})
	time.Sleep(*window)
	end := time.Now()
	say(map[string]bool{"ends": true})
	close(l.over)
	lives.Wait()
	found, late := l.between(begin, end)
	say(map[string]any{
		"seconds":   end.Sub(begin).Seconds(),
		"heartbeat": found[heartbeat],
		"commit":    found[commit],
		"late":      late,
		"joinings":  l.joinings.Load(),
	})
}
