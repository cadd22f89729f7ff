// Drives Sarama by the command line described in ../README.md. The import path is the newest one; a
// replace directive substitutes an old version. Either modern.go or ancient.go is built, for what
// differs between versions, and either members.go for groups or offsets.go for those of Kafka 0.8.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
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

// The bootstrap servers, HOST:PORT each.
func (o options) brokers() []string {
	return strings.Split(o.get("bootstrap", ""), ",")
}

func (o options) timeout() time.Duration {
	seconds, err := strconv.ParseFloat(o.get("timeout", "30"), 64)
	must(err)
	return time.Duration(seconds * float64(time.Second))
}

type header struct {
	name  string
	value []byte
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
	time.AfterFunc(2*opts.timeout(), func() { fail("timed out") })
	config := sarama.NewConfig()
	if name := opts.get("client-id", ""); name != "" {
		config.ClientID = name
	}
	if wait := opts.get("fetch-wait", ""); wait != "" {
		config.Consumer.MaxWaitTime = time.Duration(integer(wait)) * time.Millisecond
	}
	secure(config, opts)
	setup(config, opts)
	if command, ok := commands[os.Args[1]]; ok {
		command(config, opts)
		return
	}
	switch os.Args[1] {
	case "produce":
		produce(config, opts)
	case "group":
		topic, count := split(opts.spans[0])
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		group(config, opts, topic, count)
	default:
		consume(config, opts)
	}
}

// Commands of the files that only some versions are built with.
var commands = map[string]func(*sarama.Config, options){}

// Mechanisms beside PLAIN, of the files that only some versions are built with.
var mechanisms = map[string]func(*sarama.Config){}

// A topic and a count, written as TOPIC:COUNT.
func split(span string) (string, int) {
	topic, count, _ := strings.Cut(span, ":")
	return topic, integer(count)
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

func integer(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func secure(config *sarama.Config, opts options) {
	if mechanism := opts.get("sasl", ""); mechanism != "" {
		name, password, _ := strings.Cut(opts.get("user", ""), ":")
		config.Net.SASL.Enable = true
		config.Net.SASL.User = name
		config.Net.SASL.Password = password
		if enable, ok := mechanisms[mechanism]; ok {
			enable(config)
		} else if mechanism != "PLAIN" {
			fail("a mechanism that this Sarama does not know: " + mechanism)
		}
	}
	if ca := opts.get("tls-ca", ""); ca != "" {
		pem, err := os.ReadFile(ca)
		must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
		if file := opts.get("tls-certificate", ""); file != "" {
			pair, err := tls.LoadX509KeyPair(file, opts.get("tls-key", ""))
			must(err)
			config.Net.TLS.Config.Certificates = []tls.Certificate{pair}
		}
	}
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

func encoder(raw []byte) sarama.Encoder {
	if raw == nil {
		return nil
	}
	return sarama.ByteEncoder(raw)
}

func headersFrom(text string) (headers []header) {
	if text == "-" {
		return nil
	}
	for _, one := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(one, "=")
		plain, err := url.QueryUnescape(name)
		must(err)
		headers = append(headers, header{plain, decoded(value)})
	}
	return headers
}

func headersTo(headers []header) string {
	if len(headers) == 0 {
		return "-"
	}
	texts := make([]string, 0, len(headers))
	for _, one := range headers {
		texts = append(texts, url.QueryEscape(one.name)+"="+encoded(one.value))
	}
	return strings.Join(texts, ",")
}

var codecs = map[string]sarama.CompressionCodec{
	"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4,
}

func produce(config *sarama.Config, opts options) {
	if acks := opts.get("acks", ""); acks != "" {
		required := map[string]sarama.RequiredAcks{"0": 0, "1": 1, "all": -1}
		config.Producer.RequiredAcks = required[acks]
	}
	config.Producer.Compression = codecs[opts.get("codec", "none")]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	if linger := opts.get("linger", ""); linger != "" {
		config.Producer.Flush.Frequency = time.Duration(integer(linger)) * time.Millisecond
	}
	if batch := opts.get("batch-bytes", ""); batch != "" {
		config.Producer.Flush.Bytes = integer(batch)
	}
	if retries := opts.get("retries", ""); retries != "" {
		config.Producer.Retry.Max = integer(retries)
	}
	producer, err := sarama.NewAsyncProducer(opts.brokers(), config)
	must(err)
	counted := make(chan int, 1)
	go func() {
		counted <- feed(producer)
	}()
	acknowledge(producer, counted, opts.timeout())
}

func feed(producer sarama.AsyncProducer) int {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for count := 0; ; count++ {
		line, err := lines.ReadString('\n')
		if err != nil {
			return count
		}
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		partition, err := strconv.Atoi(field[1])
		must(err)
		message := &sarama.ProducerMessage{
			Topic:     field[0],
			Partition: int32(partition),
			Key:       encoder(decoded(field[3])),
			Value:     encoder(decoded(field[4])),
			Metadata:  count,
		}
		if field[2] != "-" {
			ms, err := strconv.ParseInt(field[2], 10, 64)
			must(err)
			stamp(message, ms)
		}
		label(message, headersFrom(field[5]))
		producer.Input() <- message
	}
}

// Prints in the order of input: what is acknowledged early waits for the one before it.
func acknowledge(producer sarama.AsyncProducer, counted chan int, patience time.Duration) {
	early := map[int]string{}
	next, total := 0, -1
	var limit <-chan time.Time
	for total < 0 || next < total {
		select {
		case done := <-producer.Successes():
			text := fmt.Sprintf("%s\t%d\t%d\n", done.Topic, done.Partition, done.Offset)
			early[done.Metadata.(int)] = text
			for text, ok := early[next]; ok; text, ok = early[next] {
				os.Stdout.WriteString(text)
				delete(early, next)
				next++
			}
		case failure := <-producer.Errors():
			must(failure)
		case total = <-counted:
			limit = time.After(patience)
		case <-limit:
			fail(fmt.Sprintf("timed out with %d of %d records acknowledged", next, total))
		}
	}
}

func consume(config *sarama.Config, opts options) {
	if size := opts.get("fetch-bytes", ""); size != "" {
		config.Consumer.Fetch.Default = int32(integer(size))
	}
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumer(opts.brokers(), config)
	must(err)
	limit := time.After(opts.timeout())
	for _, span := range opts.spans {
		part := strings.Split(span, ":")
		partition, err := strconv.Atoi(part[1])
		must(err)
		start := sarama.OffsetOldest
		if part[2] != "beginning" {
			start, err = strconv.ParseInt(part[2], 10, 64)
			must(err)
		}
		count, err := strconv.Atoi(part[3])
		must(err)
		read(consumer, part[0], int32(partition), start, count, limit)
	}
}

func read(
	consumer sarama.Consumer, topic string, partition int32, start int64, count int,
	limit <-chan time.Time,
) {
	if count == 0 {
		return
	}
	stream, err := consumer.ConsumePartition(topic, partition, start)
	must(err)
	for ; count > 0; count-- {
		select {
		case one := <-stream.Messages():
			show(one)
		case failure := <-stream.Errors():
			must(failure)
		case <-limit:
			fail(fmt.Sprintf(
				"timed out, %d records of %s:%d still missing", count, topic, partition))
		}
	}
	stream.AsyncClose()
}

func show(one *sarama.ConsumerMessage) {
	fmt.Printf("%s\t%d\t%d\t%s\t%s\t%s\t%s\n", one.Topic, one.Partition, one.Offset, stampOf(one),
		encoded(one.Key), encoded(one.Value), headersTo(labelsOf(one)))
}
