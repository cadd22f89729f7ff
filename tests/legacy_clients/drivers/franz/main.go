// Drives franz-go by the command line described in ../README.md; --max-version pins the protocol as
// old applications do.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/kerberos"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type options struct {
	named map[string]string
	spans []string
}

func (o options) get(name, otherwise string) string {
	if value, ok := o.named[name]; ok {
		return value
	}
	return otherwise
}

func (o options) timeout() time.Duration {
	seconds, err := strconv.ParseFloat(o.get("timeout", "30"), 64)
	must(err)
	return time.Duration(seconds * float64(time.Second))
}

func main() {
	opts := options{named: map[string]string{}}
	for i := 2; i < len(os.Args); i++ {
		word := os.Args[i]
		switch {
		case !strings.HasPrefix(word, "--"):
			opts.spans = append(opts.spans, word)
		case word == "--idempotent":
			opts.named["idempotent"] = "true"
		default:
			i++
			opts.named[word[2:]] = os.Args[i]
		}
	}
	switch os.Args[1] {
	case "produce":
		produce(opts)
	case "group":
		group(opts)
	default:
		consume(opts)
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "driver:", why)
	os.Exit(1)
}

func must(err error) {
	if err != nil {
		fail(err.Error())
	}
}

// kversion.FromString came with 1.16.
var pins = map[string]func() *kversion.Versions{
	"v0.9.0":  kversion.V0_9_0,
	"v0.10.0": kversion.V0_10_0,
	"v0.10.2": kversion.V0_10_2,
	"v0.11.0": kversion.V0_11_0,
	"v1.0.0":  kversion.V1_0_0,
	"v2.0.0":  kversion.V2_0_0,
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func common(opts options) []kgo.Opt {
	settings := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(opts.get("bootstrap", ""), ",")...),
		kgo.RetryTimeout(opts.timeout()),
	}
	if name := opts.get("client-id", ""); name != "" {
		settings = append(settings, kgo.ClientID(name))
	}
	if wait := opts.get("fetch-wait", ""); wait != "" {
		settings = append(settings, kgo.FetchMaxWait(time.Duration(number(wait))*time.Millisecond))
	}
	if name := opts.get("max-version", ""); name != "" {
		pinned, ok := pins[name]
		if !ok {
			fail("a version that is not known: " + name)
		}
		settings = append(settings, kgo.MaxVersions(pinned()))
	}
	if mechanism := opts.get("sasl", ""); mechanism != "" {
		settings = append(settings, kgo.SASL(logIn(mechanism, opts)))
	}
	if token := opts.get("oauth-token", ""); token != "" {
		settings = append(settings, kgo.SASL(oauth.Auth{Token: token}.AsMechanism()))
	}
	if ca := opts.get("tls-ca", ""); ca != "" {
		pem, err := os.ReadFile(ca)
		must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
		if file := opts.get("tls-certificate", ""); file != "" {
			pair, err := tls.LoadX509KeyPair(file, opts.get("tls-key", ""))
			must(err)
			config.Certificates = []tls.Certificate{pair}
		}
		settings = append(settings, kgo.DialTLSConfig(config))
	}
	return settings
}

func logIn(mechanism string, opts options) sasl.Mechanism {
	name, password, _ := strings.Cut(opts.get("user", ""), ":")
	switch mechanism {
	case "PLAIN":
		return plain.Auth{User: name, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: name, Pass: password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: name, Pass: password}.AsSha512Mechanism()
	case "GSSAPI":
		return byKeytab(name, password)
	}
	fail("a mechanism that is not known: " + mechanism)
	return nil
}

// byKeytab takes a user as NAME@REALM and the file of its keytab.
func byKeytab(user, file string) sasl.Mechanism {
	name, realm, _ := strings.Cut(user, "@")
	keys, err := keytab.Load(file)
	must(err)
	realms, err := config.Load(os.Getenv("KRB5_CONFIG"))
	must(err)
	return kerberos.Auth{
		Client:  client.NewWithKeytab(name, realm, keys, realms),
		Service: "kafka",
	}.AsMechanism()
}

func decoded(text string) []byte {
	if text == "-" {
		return nil
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	must(err)
	if raw == nil {
		raw = []byte{}
	}
	return raw
}

func encoded(raw []byte) string {
	if raw == nil {
		return "-"
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func headersFrom(text string) (headers []kgo.RecordHeader) {
	if text == "-" {
		return nil
	}
	for _, one := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(one, "=")
		plain, err := url.QueryUnescape(name)
		must(err)
		headers = append(headers, kgo.RecordHeader{Key: plain, Value: decoded(value)})
	}
	return headers
}

func headersTo(headers []kgo.RecordHeader) string {
	if len(headers) == 0 {
		return "-"
	}
	texts := make([]string, 0, len(headers))
	for _, one := range headers {
		texts = append(texts, url.QueryEscape(one.Key)+"="+encoded(one.Value))
	}
	return strings.Join(texts, ",")
}

func produce(opts options) {
	codec := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}[opts.get("codec", "none")]
	settings := append(common(opts),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec))
	if acks := opts.get("acks", ""); acks != "" {
		required := map[string]kgo.Acks{
			"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks(),
		}
		settings = append(settings, kgo.RequiredAcks(required[acks]))
	}
	if linger := opts.get("linger", ""); linger != "" {
		wait := time.Duration(number(linger)) * time.Millisecond
		settings = append(settings, kgo.ProducerLinger(wait))
	}
	// No RecordDeliveryTimeout: franz-go counts it from the record's own timestamp. The flush has
	// the deadline. A record larger than the batch is refused by franz-go itself: the batch is
	// bounded by --batch-bytes only when that leaves room.
	if batch := opts.get("batch-bytes", ""); batch != "" {
		settings = append(settings, kgo.ProducerBatchMaxBytes(int32(max(number(batch), 1<<20))))
	}
	settings = append(settings, kgo.MaxBufferedRecords(10000), kgo.AllowAutoTopicCreation())
	// Idempotent unless impossible: KIP-98 requires 0.11 and acks=all.
	isPinned := opts.get("max-version", "") != "" && opts.get("idempotent", "") == ""
	if opts.get("acks", "all") != "all" || isPinned {
		settings = append(settings, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(settings...)
	must(err)
	acknowledge(client, opts)
}

func acknowledge(client *kgo.Client, opts options) {
	var lock sync.Mutex
	early := map[int]string{}
	next := 0
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for count := 0; ; count++ {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		partition, err := strconv.Atoi(field[1])
		must(err)
		record := &kgo.Record{
			Topic:     field[0],
			Partition: int32(partition),
			Key:       decoded(field[3]),
			Value:     decoded(field[4]),
			Headers:   headersFrom(field[5]),
		}
		if field[2] != "-" {
			ms, err := strconv.ParseInt(field[2], 10, 64)
			must(err)
			record.Timestamp = time.UnixMilli(ms)
		}
		index := count
		client.Produce(context.Background(), record, func(done *kgo.Record, err error) {
			must(err)
			lock.Lock()
			defer lock.Unlock()
			early[index] = fmt.Sprintf("%s\t%d\t%d\n", done.Topic, done.Partition, done.Offset)
			for text, ok := early[next]; ok; text, ok = early[next] {
				os.Stdout.WriteString(text)
				delete(early, next)
				next++
			}
		})
	}
	within, cancel := context.WithTimeout(context.Background(), opts.timeout())
	defer cancel()
	must(client.Flush(within))
}

func consume(opts options) {
	offsets := map[string]map[int32]kgo.Offset{}
	missing := map[string]int{}
	for _, span := range opts.spans {
		part := strings.Split(span, ":")
		partition, err := strconv.Atoi(part[1])
		must(err)
		start := kgo.NewOffset().AtStart()
		if part[2] != "beginning" {
			offset, err := strconv.ParseInt(part[2], 10, 64)
			must(err)
			start = kgo.NewOffset().At(offset)
		}
		count, err := strconv.Atoi(part[3])
		must(err)
		if offsets[part[0]] == nil {
			offsets[part[0]] = map[int32]kgo.Offset{}
		}
		offsets[part[0]][int32(partition)] = start
		if count > 0 {
			missing[part[0]+":"+part[1]] = count
		}
	}
	settings := append(common(opts),
		kgo.ConsumePartitions(offsets),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if size := opts.get("fetch-bytes", ""); size != "" {
		settings = append(settings, kgo.FetchMaxPartitionBytes(int32(number(size))))
	}
	client, err := kgo.NewClient(settings...)
	must(err)
	within, cancel := context.WithTimeout(context.Background(), opts.timeout())
	defer cancel()
	for len(missing) > 0 {
		fetches := client.PollFetches(within)
		if within.Err() != nil {
			fail(fmt.Sprint("timed out, records still missing: ", missing))
		}
		for _, failure := range fetches.Errors() {
			must(fmt.Errorf("%s:%d: %w", failure.Topic, failure.Partition, failure.Err))
		}
		fetches.EachRecord(func(one *kgo.Record) {
			where := fmt.Sprintf("%s:%d", one.Topic, one.Partition)
			if missing[where] == 0 {
				return
			}
			missing[where]--
			if missing[where] == 0 {
				delete(missing, where)
			}
			show(one)
		})
	}
}

func group(opts options) {
	topic, wanted, _ := strings.Cut(opts.spans[0], ":")
	count := number(wanted)
	settings := append(common(opts),
		kgo.ConsumerGroup(opts.get("group", "")),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if session := opts.get("session", ""); session != "" {
		settings = append(settings,
			kgo.SessionTimeout(time.Duration(number(session))*time.Millisecond),
			kgo.HeartbeatInterval(500*time.Millisecond))
	}
	client, err := kgo.NewClient(settings...)
	must(err)
	within, cancel := context.WithTimeout(context.Background(), opts.timeout())
	defer cancel()
	retries := number(opts.get("retries", "0"))
	for count > 0 {
		// No more than are wanted: what was polled counts as read.
		fetches := client.PollRecords(within, count)
		if within.Err() != nil {
			fail(fmt.Sprintf("timed out, %d records still missing", count))
		}
		for _, failure := range fetches.Errors() {
			var lost *kgo.ErrGroupSession
			if retries > 0 && errors.As(failure.Err, &lost) {
				// The library joins again by itself.
				continue
			}
			must(fmt.Errorf("%s:%d: %w", failure.Topic, failure.Partition, failure.Err))
		}
		read := fetches.Records()
		err := client.CommitRecords(within, read...)
		for ; err != nil && retries > 0; retries-- {
			time.Sleep(100 * time.Millisecond)
			err = client.CommitRecords(within, read...)
		}
		must(err)
		for _, one := range read {
			show(one)
		}
		count -= len(read)
	}
	// Leaves the group.
	client.Close()
}

func show(one *kgo.Record) {
	stamp := "-"
	if one.Timestamp.UnixMilli() >= 0 {
		stamp = strconv.FormatInt(one.Timestamp.UnixMilli(), 10)
	}
	fmt.Printf("%s\t%d\t%d\t%s\t%s\t%s\t%s\n", one.Topic, one.Partition, one.Offset, stamp,
		encoded(one.Key), encoded(one.Value), headersTo(one.Headers))
}
