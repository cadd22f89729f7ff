// Drives kafka-node (2.0 ... 5.0) by the command line described in README.md.
'use strict'

const fs = require('fs')
const readline = require('readline')
const kafka = require('kafka-node')

// snappy needs a compiler, and nothing else is known.
const CODECS = { none: 0, gzip: 1 }
const RETRY_MS = 100
// The library's default.
const REQUEST_TIMEOUT_MS = 30000
// The library may never report that a request was lost with its broker.
const LOST_MS = REQUEST_TIMEOUT_MS + 5000
const LOST = new Error('no answer')
const decoded = text => (text === '-' ? null : Buffer.from(text, 'base64'))
const encoded = raw =>
  raw === null || raw === undefined ? '-' : Buffer.from(raw).toString('base64')
const done = (resolve, reject) => (error, answer) => (error ? reject(error) : resolve(answer))

function parse(words) {
  const options = { timeout: '30', spans: [] }
  for (let i = 0; i < words.length; i++) {
    const name = words[i].replace(/^--/, '')
    if (name === words[i]) options.spans.push(name)
    else options[name] = name === 'idempotent' ? true : words[++i]
  }
  return options
}

function common(options) {
  const settings = {
    kafkaHost: options.bootstrap,
    connectTimeout: 1000 * Number(options.timeout),
    requestTimeout: Math.min(REQUEST_TIMEOUT_MS, 1000 * Number(options.timeout)),
  }
  if (options['client-id']) settings.clientId = options['client-id']
  if (options['tls-ca']) settings.sslOptions = { ca: [fs.readFileSync(options['tls-ca'], 'utf8')] }
  if (options['tls-certificate'])
    Object.assign(settings.sslOptions, {
      cert: fs.readFileSync(options['tls-certificate'], 'utf8'),
      key: fs.readFileSync(options['tls-key'], 'utf8'),
    })
  if (options.sasl) settings.sasl = { mechanism: options.sasl.toLowerCase() }
  if (options.user) {
    const [username, ...password] = options.user.split(':')
    Object.assign(settings.sasl, { username, password: password.join(':') })
  }
  return settings
}

async function connected(options) {
  const client = new kafka.KafkaClient(common(options))
  await new Promise((resolve, reject) => client.once('ready', resolve).on('error', reject))
  return client
}

async function producing(options) {
  const client = await connected(options)
  const settings = options.acks
    ? {
        requireAcks: { 0: 0, 1: 1 }[options.acks] ?? -1,
        ackTimeoutMs: 1000 * Number(options.timeout),
      }
    : {}
  const producer = new kafka.Producer(client, settings)
  // Lost metadata is reported twice: here, and by `send`, which is retried.
  if (options.retries) producer.on('error', () => {})
  return { client, producer }
}

// kafka-node makes one request of each send, so the batches are made here: consecutive records up
// to --batch-bytes.
async function produce(options) {
  let { client, producer } = await producing(options)
  let isLost = false
  const limit = Number(options['batch-bytes'] || 16384)
  let batch = []
  let size = 0
  const send = async () => {
    const sent = batch
    batch = []
    size = 0
    if (!sent.length) return
    await retried(options, async () => {
      if (isLost) {
        // The former client may wait for the lost broker for ever.
        client.close(() => {})
        ;({ client, producer } = await answered(producing(options)))
        isLost = false
      }
      try {
        process.stdout.write(await answered(sendBatch(client, producer, options, sent)))
      } catch (error) {
        isLost = error === LOST
        throw error
      }
    })
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
}

// It is for the application to send again.
async function retried(options, send) {
  for (let left = Number(options.retries || 0); ; left--) {
    try {
      return await send()
    } catch (error) {
      if (left <= 0) throw error
      await new Promise(resolve => setTimeout(resolve, RETRY_MS))
    }
  }
}

async function answered(outcome) {
  let timer
  const lost = new Promise((_, reject) => {
    timer = setTimeout(() => reject(LOST), LOST_MS)
  })
  try {
    return await Promise.race([outcome, lost])
  } finally {
    clearTimeout(timer)
  }
}

// Returns the lines of the answer.
async function sendBatch(client, producer, options, lines) {
  await new Promise((resolve, reject) =>
    client.refreshMetadata([...new Set(lines.map(line => line[0]))], done(resolve, reject)),
  )
  const payloads = lines.map(([topic, partition, timestamp, key, value]) => {
    const message = new kafka.KeyedMessage(decoded(key), decoded(value))
    if (timestamp !== '-') message.timestamp = Number(timestamp)
    return {
      topic,
      partition: Number(partition),
      messages: [message],
      attributes: CODECS[options.codec || 'none'],
    }
  })
  const answer = await new Promise((resolve, reject) =>
    producer.send(payloads, done(resolve, reject)),
  )
  const next = new Map()
  let text = ''
  for (const [topic, partition] of lines) {
    const place = `${topic}:${partition}`
    const offset = next.has(place) ? next.get(place) + 1 : answer[topic][partition]
    next.set(place, offset)
    text += `${topic}\t${partition}\t${offset}\n`
  }
  return text
}

function reading(options) {
  const settings = { encoding: 'buffer', keyEncoding: 'buffer', autoCommit: false }
  if (options['fetch-wait']) settings.fetchMaxWaitMs = Number(options['fetch-wait'])
  return settings
}

function line({ topic, partition, offset, timestamp, key, value }) {
  // Format 0 has no timestamp, format 1 may have none.
  const at =
    timestamp === undefined || timestamp === null || Number(timestamp) <= 0
      ? '-'
      : Number(timestamp)
  return [topic, partition, offset, at, encoded(key), encoded(value), '-'].join('\t') + '\n'
}

// It is for the application to ask.
async function beginning(client, topic, partition) {
  const asked = [{ topic, partition, time: -2, maxNum: 1 }]
  const found = await new Promise((resolve, reject) =>
    new kafka.Offset(client).fetch(asked, done(resolve, reject)),
  )
  return found[topic][partition][0]
}

async function consume(options) {
  const client = await connected(options)
  const missing = new Map()
  const payloads = []
  for (const span of options.spans) {
    const [topic, partition, from, count] = span.split(':')
    if (count === '0') continue
    const start = from === 'beginning' ? await beginning(client, topic, Number(partition)) : from
    missing.set(`${topic}:${partition}`, {
      from: Number(start),
      end: Number(start) + Number(count),
      seen: new Map(),
    })
    payloads.push({ topic, partition: Number(partition), offset: Number(start) })
  }
  if (!payloads.length) return
  const settings = { ...reading(options), fromOffset: true }
  if (options['fetch-bytes']) settings.fetchMaxBytes = Number(options['fetch-bytes'])
  const consumer = new kafka.Consumer(client, payloads, settings)
  let left = missing.size
  await new Promise((resolve, reject) => {
    consumer
      .on('error', reject)
      .on('offsetOutOfRange', where => reject(new Error(`out of range: ${JSON.stringify(where)}`)))
    consumer.on('message', message => {
      const span = missing.get(`${message.topic}:${message.partition}`)
      if (message.offset < span.from || message.offset >= span.end || span.seen.has(message.offset))
        return
      span.seen.set(message.offset, line(message))
      if (span.seen.size === span.end - span.from && !--left) resolve()
    })
  })
  // Compressed sets are unpacked in threads, so that they come in any order.
  for (const { seen } of missing.values())
    process.stdout.write(
      [...seen]
        .sort(([a], [b]) => a - b)
        .map(([, text]) => text)
        .join(''),
    )
}

async function group(options) {
  const [topic, count] = options.spans[0].split(':')
  const own = { groupId: options.group, fromOffset: 'earliest' }
  if (options['client-id']) own.id = options['client-id']
  if (options.session)
    Object.assign(own, { sessionTimeout: Number(options.session), heartbeatInterval: 500 })
  const member = new kafka.ConsumerGroup({ ...common(options), ...reading(options), ...own }, [
    topic,
  ])
  const following = new Map()
  let missing = Number(count)
  let isCommitting = false
  // What comes while a commit is under way goes into the next one.
  const commit = async () => {
    isCommitting = true
    while (following.size) {
      const commits = [...following].map(([partition, offset]) => ({
        topic,
        partition,
        offset,
        metadata: '',
      }))
      following.clear()
      const send = () =>
        new Promise((resolve, reject) =>
          member.sendOffsetCommitRequest(commits, done(resolve, reject)),
        )
      await retried(options, send)
    }
    isCommitting = false
  }
  await new Promise((resolve, reject) => {
    // It continues after an error, and an application may ignore it.
    member.on('error', options.retries ? () => {} : reject).on('message', message => {
      if (!missing) return
      process.stdout.write(line(message))
      following.set(message.partition, message.offset + 1)
      missing -= 1
      if (!isCommitting) commit().then(() => missing || resolve(), reject)
    })
  })
  member.pause()
  // Leaves the group.
  await new Promise((resolve, reject) => member.close(false, done(resolve, reject)))
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

// Not before all is written: a pipe takes 64 KiB at a time.
main().then(() => process.stdout.write('', () => process.exit(0)), fail)
