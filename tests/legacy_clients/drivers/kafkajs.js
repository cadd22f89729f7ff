// Drives KafkaJS (1.0 ... 2.2) by the command line described in README.md.
'use strict'

const fs = require('fs')
const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = require('kafkajs')

// Codecs that KafkaJS leaves to others; all are plain JavaScript or WebAssembly, so that nothing
// needs compiling.
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => {
  const lz4 = require('lz4js')
  return {
    compress: async encoder => asIndependent(Buffer.from(lz4.compress(encoder.buffer))),
    decompress: async buffer => Buffer.from(lz4.decompress(buffer)),
  }
}
if (CompressionTypes.ZSTD) {
  const zstd = require('@bokuweb/zstd-wasm')
  // Once: a second init would give the module another heap under a running compression.
  const zstdReady = zstd.init()
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => (await zstdReady, Buffer.from(zstd.compress(encoder.buffer, 3))),
    decompress: async buffer => (await zstdReady, Buffer.from(zstd.decompress(buffer))),
  })
}

// lz4js leaves the bit for independent blocks unset, which Kafka refuses; a frame below its block
// size of 4 MiB is one block and may say so. 0x73 is the checksum of the two header bytes before it
// (second byte of their xxh32), as liblz4 writes it.
function asIndependent(frame) {
  if (frame.readUInt32LE(0) !== 0x184d2204 || frame[4] !== 0x40 || frame[5] !== 0x70)
    throw new Error('lz4js writes another frame header than expected')
  frame[4] = 0x60
  frame[6] = 0x73
  return frame
}

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const decoded = text => (text === '-' ? null : Buffer.from(text, 'base64'))
const encoded = raw => (raw === null || raw === undefined ? '-' : raw.toString('base64'))

function parse(words) {
  const options = { timeout: '30', spans: [] }
  for (let i = 0; i < words.length; i++) {
    if (!words[i].startsWith('--')) {
      options.spans.push(words[i])
      continue
    }
    const name = words[i].replace(/^--/, '')
    options[name] = name === 'idempotent' ? true : words[++i]
  }
  return options
}

function connect(options) {
  const settings = {
    brokers: options.bootstrap.split(','),
    // A second by default, and up to 1.x a second for a log-in, too.
    connectionTimeout: 60000,
    authenticationTimeout: 60000,
    logLevel: logLevel.ERROR,
    logCreator: () => entry =>
      process.stderr.write(`${entry.log.message} ${entry.log.error || ''}\n`),
  }
  if (options.retries) settings.retry = { retries: Number(options.retries) }
  if (options['client-id']) settings.clientId = options['client-id']
  if (options['tls-ca']) settings.ssl = { ca: [fs.readFileSync(options['tls-ca'], 'utf8')] }
  if (options['tls-certificate'])
    Object.assign(settings.ssl, {
      cert: fs.readFileSync(options['tls-certificate'], 'utf8'),
      key: fs.readFileSync(options['tls-key'], 'utf8'),
    })
  if (options.sasl) settings.sasl = { mechanism: options.sasl.toLowerCase() }
  if (options.user) {
    const [username, ...password] = options.user.split(':')
    Object.assign(settings.sasl, { username, password: password.join(':') })
  }
  if (options['oauth-token']) {
    const value = options['oauth-token']
    settings.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value }) }
  }
  return new Kafka(settings)
}

function headersFrom(text) {
  const headers = {}
  if (text !== '-') {
    for (const one of text.split(',')) {
      const at = one.indexOf('=')
      headers[decodeURIComponent(one.slice(0, at))] = decoded(one.slice(at + 1))
    }
  }
  return headers
}

// KafkaJS makes one request of each send, so the batches are made here: consecutive records up to
// --batch-bytes.
async function produce(options) {
  const producer = connect(options).producer({
    idempotent: !!options.idempotent,
    createPartitioner: Partitioners && Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  const limit = Number(options['batch-bytes'] || 16384)
  let batch = []
  let size = 0
  const send = async () => {
    if (!batch.length) return
    const sent = batch
    batch = []
    size = 0
    await sendBatch(producer, options, sent)
  }
  for await (const line of readline.createInterface({
    input: process.stdin,
    crlfDelay: Infinity,
  })) {
    batch.push(line.split('\t'))
    size += line.length
    if (size >= limit) await send()
  }
  await send()
  await producer.disconnect()
}

async function sendBatch(producer, options, lines) {
  const topics = new Map()
  for (const [topic, partition, timestamp, key, value, headers] of lines) {
    if (!topics.has(topic)) topics.set(topic, [])
    const message = {
      partition: Number(partition),
      key: decoded(key),
      value: decoded(value),
      headers: headersFrom(headers),
    }
    if (timestamp !== '-') message.timestamp = timestamp
    topics.get(topic).push(message)
  }
  const answers = []
  for (const [topic, messages] of topics) {
    const settings = { compression: CODECS[options.codec || 'none'] }
    if (options.acks) settings.acks = { 0: 0, 1: 1 }[options.acks] ?? -1
    answers.push(...(await producer.send({ topic, messages, ...settings })))
  }
  const next = new Map(
    answers.map(a => [`${a.topicName}:${a.partition}`, BigInt(a.baseOffset ?? a.offset)]),
  )
  let text = ''
  for (const [topic, partition] of lines) {
    const place = `${topic}:${partition}`
    const offset = next.get(place) ?? -1n
    if (offset >= 0n) next.set(place, offset + 1n)
    text += `${topic}\t${partition}\t${offset}\n`
  }
  fs.writeSync(1, text)
}

function headersTo(headers) {
  const pairs = Object.entries(headers || {}).flatMap(([name, values]) =>
    [].concat(values).map(value => [name, value]),
  )
  return (
    pairs.map(([name, value]) => `${encodeURIComponent(name)}=${encoded(value)}`).join(',') || '-'
  )
}

function show(topic, partition, { offset, timestamp, key, value, headers }) {
  // Format 0 has no timestamp, format 1 may have none.
  const at = timestamp === undefined || Number(timestamp) <= 0 ? '-' : timestamp
  fs.writeSync(
    1,
    [topic, partition, offset, at, encoded(key), encoded(value), headersTo(headers)].join('\t') +
      '\n',
  )
}

// KafkaJS consumes only in groups: a group without other members and without automatic commits.
async function consume(options) {
  const spans = new Map()
  for (const span of options.spans) {
    const [topic, partition, from, count] = span.split(':')
    const start = from === 'beginning' ? '0' : from
    spans.set(`${topic}:${partition}`, {
      topic,
      partition: Number(partition),
      start,
      next: BigInt(start),
      left: Number(count),
    })
  }
  const settings = { groupId: `legacy-driver-${process.pid}-${Date.now()}` }
  if (options['fetch-wait']) settings.maxWaitTimeInMs = Number(options['fetch-wait'])
  if (options['fetch-bytes']) settings.maxBytesPerPartition = Number(options['fetch-bytes'])
  const consumer = connect(options).consumer(settings)
  await consumer.connect()
  for (const topic of new Set([...spans.values()].map(span => span.topic)))
    await consumer.subscribe({ topic, fromBeginning: true })
  let missing = [...spans.values()].reduce((sum, span) => sum + span.left, 0)
  await new Promise((resolve, reject) => {
    const eachBatch = async ({ batch }) => {
      const span = spans.get(`${batch.topic}:${batch.partition}`)
      for (const message of batch.messages) {
        if (!span || !span.left || BigInt(message.offset) < span.next) continue
        show(batch.topic, batch.partition, message)
        span.next = BigInt(message.offset) + 1n
        span.left -= 1
        missing -= 1
      }
      if (!missing) resolve()
    }
    // Only who runs may seek.
    const seek = () =>
      spans.forEach(
        ({ topic, partition, start }) =>
          start === '0' || consumer.seek({ topic, partition, offset: start }),
      )
    consumer.run({ autoCommit: false, eachBatch }).then(seek).catch(reject)
  })
  await consumer.disconnect()
}

async function group(options) {
  const [topic, count] = options.spans[0].split(':')
  const settings = { groupId: options.group }
  if (options.session)
    Object.assign(settings, { sessionTimeout: Number(options.session), heartbeatInterval: 500 })
  if (options['fetch-wait']) settings.maxWaitTimeInMs = Number(options['fetch-wait'])
  const consumer = connect(options).consumer(settings)
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let missing = Number(count)
  const enough = new Promise((resolve, reject) => {
    // Whatever is resolved is committed at the end of the fetch, and the rest of it is not.
    const eachBatch = async ({ batch, resolveOffset }) => {
      for (const message of batch.messages) {
        if (!missing) break
        show(topic, batch.partition, message)
        resolveOffset(message.offset)
        missing -= 1
      }
      if (!missing) resolve()
    }
    consumer.run({ eachBatchAutoResolve: false, eachBatch }).catch(reject)
  })
  await enough
  // Ends the fetch, commits and leaves the group.
  await consumer.disconnect()
}

async function main() {
  const [verb, ...words] = process.argv.slice(2)
  const options = parse(words)
  const timer = setTimeout(() => fail(new Error('timed out')), 1000 * Number(options.timeout))
  await { produce, consume, group }[verb](options)
  clearTimeout(timer)
}

function fail(error) {
  fs.writeSync(2, `driver: ${error.name}: ${error.message}\n`)
  process.exit(1)
}

main().then(() => process.exit(0), fail)
