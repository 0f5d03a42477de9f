/**
 * The yardstick: watches claims of a class and creates a PersistentVolume for each, 32 at a time. It has no storage and
 * no records, never checks anything again and writes no Events. It uses Node's HTTP client, so that changes of Stowage
 * don't affect it.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { Agent, request } from 'node:https';
import { createInterface } from 'node:readline';

interface Claim {
  readonly metadata: { readonly name: string; readonly namespace: string; readonly uid: string };
  readonly spec: {
    readonly volumeName?: string;
    readonly storageClassName?: string;
    readonly accessModes: readonly string[];
    readonly resources: { readonly requests: { readonly storage: string } };
  };
}

const [accessFile = '', className = ''] = process.argv.slice(2);
const { server, token, ca } = JSON.parse(readFileSync(accessFile, 'utf8')) as Record<string, string>;
const url = new URL(server ?? '');
const inFlight = 32;
const agent = new Agent({ keepAlive: true, maxSockets: inFlight });
const common = {
  host: url.hostname,
  port: url.port,
  ca: readFileSync(ca ?? ''),
  headers: { authorization: `Bearer ${token}`, accept: 'application/json', 'content-type': 'application/json' },
};

async function ask(method: string, path: string, by: Agent | false, body?: object): Promise<IncomingMessage> {
  const sent = request({ ...common, method, path, agent: by });
  sent.end(body === undefined ? undefined : JSON.stringify(body));
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  if ((answer.statusCode ?? 0) >= 300) throw new Error(`${method} ${path}: ${answer.statusCode}`);
  return answer;
}

const volumeFor = ({ metadata: { name, namespace, uid }, spec }: Claim): object => ({
  apiVersion: 'v1',
  kind: 'PersistentVolume',
  metadata: { name: `pvc-${uid}`, annotations: { 'pv.kubernetes.io/provisioned-by': className } },
  spec: {
    capacity: { storage: spec.resources.requests.storage },
    accessModes: spec.accessModes,
    volumeMode: 'Filesystem',
    persistentVolumeReclaimPolicy: 'Delete',
    storageClassName: className,
    claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', name, namespace, uid },
    csi: { driver: className, volumeHandle: uid, volumeAttributes: { store: 'silver', name: `pvc-${uid}` } },
  },
});

const waiting: Claim[] = [];
const seen = new Set<string>();
let running = 0;

async function create(claim: Claim): Promise<void> {
  running++;
  const answer = await ask('POST', '/api/v1/persistentvolumes', agent, volumeFor(claim));
  answer.resume();
  await once(answer, 'end');
  running--;
  next();
}

function next(): void {
  while (running < inFlight) {
    const claim = waiting.shift();
    if (claim === undefined) return;
    void create(claim);
  }
}

function take(claim: Claim): void {
  const { metadata, spec } = claim;
  if (spec.storageClassName !== className || spec.volumeName !== undefined || seen.has(metadata.uid)) return;
  seen.add(metadata.uid);
  waiting.push(claim);
  next();
}

const path = '/api/v1/persistentvolumeclaims';
let text = '';
for await (const chunk of (await ask('GET', path, agent)).setEncoding('utf8')) text += chunk;
const list = JSON.parse(text) as { readonly items: readonly Claim[]; readonly metadata: { resourceVersion: string } };
for (const claim of list.items) take(claim);
const watch = await ask('GET', `${path}?watch=true&resourceVersion=${list.metadata.resourceVersion}`, false);
console.log('the loop watches');
for await (const line of createInterface({ input: watch })) {
  const { type, object } = JSON.parse(line) as { readonly type: string; readonly object: Claim };
  if (type === 'ADDED') take(object);
}
