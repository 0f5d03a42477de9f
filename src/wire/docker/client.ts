import type { Clock } from '#base/clock.ts';
import { linesIn } from '#base/lines.ts';
import {
  type Container,
  type ContainerSpec,
  containerOf,
  createBody,
  type ListedContainer,
  listedContainers,
} from './containers.ts';
import { DockerError, garbledError, parseBody } from './errors.ts';
import { type EngineEvent, eventOf } from './events.ts';
import { fieldsOf } from './fields.ts';
import { createDockerHttp, type EngineRequest, type EngineResponse, failureOf } from './http.ts';
import { chooseApiVersion, type Version, versionOf } from './version.ts';

export interface EngineInfo {
  readonly id: string;
  readonly name: string;
  readonly root: string;
  /** For example `name=seccomp,profile=default`, `name=userns`, `name=rootless`. */
  readonly securityOptions: readonly string[];
  /** Containers keep running while the engine restarts. */
  readonly liveRestore: boolean;
}

export interface Network {
  readonly id: string;
  readonly name: string;
  readonly driver: string;
  readonly internal: boolean;
  readonly labels: Readonly<Record<string, string>>;
  readonly subnets: readonly string[];
}

export interface NetworkSpec {
  readonly name: string;
  readonly driver?: string;
  readonly internal?: boolean;
  readonly subnet?: string;
  readonly labels?: Readonly<Record<string, string>>;
}

export interface EventQuery {
  readonly types: readonly string[];
  /** Includes past events since this time, in milliseconds since 1970. */
  readonly since?: number;
}

/**
 * The Docker Engine API over a Unix socket, for Docker and Podman. Every call ends with its signal or its deadline, whichever
 * comes first. Every failure is a DockerError.
 */
export interface DockerClient extends Disposable {
  ping(signal: AbortSignal): Promise<void>;
  version(signal: AbortSignal): Promise<Version>;
  info(signal: AbortSignal): Promise<EngineInfo>;
  /** Lists all containers, including stopped ones. */
  containers(signal: AbortSignal): Promise<readonly ListedContainer[]>;
  container(idOrName: string, signal: AbortSignal): Promise<Container>;
  /** Returns the id. Empty name: the engine chooses one. */
  createContainer(name: string, spec: ContainerSpec, signal: AbortSignal): Promise<string>;
  /** Succeeds if the container is already running. */
  startContainer(idOrName: string, signal: AbortSignal): Promise<void>;
  /** Succeeds if the container is not running. The engine kills it after this many seconds. */
  stopContainer(idOrName: string, seconds: number, signal: AbortSignal): Promise<void>;
  /** Sends a signal such as `USR1` to the container. */
  signalContainer(idOrName: string, name: string, signal: AbortSignal): Promise<void>;
  /**
   * Waits until the container was removed after its end, or until its next exit, for at most an hour. Returns its exit status.
   */
  waitContainer(idOrName: string, signal: AbortSignal, condition?: 'removed' | 'next-exit'): Promise<number>;
  /** Kills the container if it runs, and removes its anonymous volumes, too. */
  removeContainer(idOrName: string, signal: AbortSignal): Promise<void>;
  network(idOrName: string, signal: AbortSignal): Promise<Network>;
  createNetwork(spec: NetworkSpec, signal: AbortSignal): Promise<string>;
  removeNetwork(idOrName: string, signal: AbortSignal): Promise<void>;
  connect(network: string, container: string, signal: AbortSignal): Promise<void>;
  /** Returns the image's id. */
  image(name: string, signal: AbortSignal): Promise<string>;
  /** Loads a tar in the format of `docker save`. Returns the names or ids that the engine reports. */
  loadImage(tar: AsyncIterable<Uint8Array>, signal: AbortSignal): Promise<readonly string[]>;
  /** Resolves once the engine streams events. The stream ends when the engine closes it, and throws if the connection breaks. */
  events(query: EventQuery, signal: AbortSignal): Promise<AsyncGenerator<EngineEvent, void, undefined>>;
}

const mib = 1 << 20;
const defaultCallMs = 10_000;
/** For calls that wait for mounts, networks or processes. */
const slowCallMs = 120_000;
const loadImageMs = 600_000;
const maxWaitMs = 3_600_000;
/** An event of a container with thousands of labels is a few hundred kilobytes. */
const maxEventBytes = mib;
const maxListBytes = 64 * mib;

export function createDockerClient(options: { readonly socket: string; readonly clock: Clock }): DockerClient {
  const http = createDockerHttp(options.socket, options.clock);
  let apiVersion: string | undefined;

  async function version(signal: AbortSignal): Promise<Version> {
    const call = 'GET /version';
    const { body } = await http.request({ ...requestTo('GET', '/version'), call }, signal);
    return versionOf(parseBody(body, call), call);
  }

  /** Uses the negotiated API version; negotiates again if the engine may have been replaced. */
  async function withApiVersion<T>(
    request: EngineRequest,
    signal: AbortSignal,
    sendRequest: (out: EngineRequest) => Promise<T>,
  ): Promise<T> {
    apiVersion ??= chooseApiVersion(await version(signal), 'GET /version');
    try {
      return await sendRequest({ ...request, path: `/v${apiVersion}${request.path}` });
    } catch (thrown) {
      if (thrown instanceof DockerError && mayHaveChangedVersion(thrown)) apiVersion = undefined;
      throw thrown;
    }
  }
  const send = (request: EngineRequest, signal: AbortSignal): Promise<EngineResponse> =>
    withApiVersion(request, signal, (full) => http.request(full, signal));

  async function get(path: string, signal: AbortSignal, more: Partial<EngineRequest> = {}): Promise<unknown> {
    const out = { ...requestTo('GET', path), ...more };
    return parseBody((await send(out, signal)).body, out.call);
  }
  const mutate = (method: 'POST' | 'DELETE', path: string, signal: AbortSignal, more: Partial<EngineRequest> = {}) =>
    send({ ...requestTo(method, path), timeoutMs: slowCallMs, ...more }, signal);
  /** Creates an object and returns its id. */
  async function createObject(path: string, body: object, signal: AbortSignal, query = {}): Promise<string> {
    const answer = await mutate('POST', path, signal, { body, query });
    return fieldsOf(parseBody(answer.body, `POST ${path}`), `POST ${path}`).text('Id');
  }
  const discardResult = async (done: Promise<unknown>): Promise<void> => void (await done);

  return {
    version,
    ping: (signal) => discardResult(http.request(requestTo('GET', '/_ping'), signal)),
    info: async (signal) => infoOf(await get('/info', signal), 'GET /info'),
    containers: async (signal) => {
      const answer = await get('/containers/json', signal, { query: { all: '1' }, maxBytes: maxListBytes });
      return listedContainers(answer, 'GET /containers/json');
    },
    container: async (name, signal) => {
      const path = `/containers/${pathSegment(name)}/json`;
      return containerOf(await get(path, signal), `GET ${path}`);
    },
    createContainer: (name, spec, signal) =>
      createObject('/containers/create', createBody(spec), signal, name === '' ? {} : { name }),
    startContainer: (name, signal) => discardResult(mutate('POST', `/containers/${pathSegment(name)}/start`, signal)),
    stopContainer: (name, seconds, signal) =>
      discardResult(
        mutate('POST', `/containers/${pathSegment(name)}/stop`, signal, {
          query: { t: String(seconds) },
          timeoutMs: slowCallMs + seconds * 1_000,
        }),
      ),
    signalContainer: (name, which, signal) =>
      discardResult(mutate('POST', `/containers/${pathSegment(name)}/kill`, signal, { query: { signal: which } })),
    waitContainer: async (name, signal, condition = 'removed') => {
      const path = `/containers/${pathSegment(name)}/wait`;
      const waitOptions = { query: { condition }, ownConnection: true, timeoutMs: maxWaitMs };
      const { body } = await mutate('POST', path, signal, waitOptions);
      return fieldsOf(parseBody(body, `POST ${path}`), `POST ${path}`).count('StatusCode');
    },
    removeContainer: (name, signal) =>
      discardResult(mutate('DELETE', `/containers/${pathSegment(name)}`, signal, { query: { force: '1', v: '1' } })),
    network: async (name, signal) =>
      networkOf(await get(`/networks/${pathSegment(name)}`, signal), `GET /networks/${name}`),
    createNetwork: ({ name, driver, internal, subnet, labels }, signal) => {
      const ipam = subnet === undefined ? undefined : { Config: [{ Subnet: subnet }] };
      const body = { Name: name, CheckDuplicate: true, Driver: driver, Internal: internal, IPAM: ipam, Labels: labels };
      return createObject('/networks/create', body, signal);
    },
    removeNetwork: (name, signal) => discardResult(mutate('DELETE', `/networks/${pathSegment(name)}`, signal)),
    connect: (name, container, signal) =>
      discardResult(
        mutate('POST', `/networks/${pathSegment(name)}/connect`, signal, { body: { Container: container } }),
      ),
    // Image names contain slashes, which must not be escaped.
    image: async (name, signal) => {
      const path = `/images/${name.split('/').map(pathSegment).join('/')}/json`;
      return fieldsOf(await get(path, signal, { maxBytes: 8 * mib }), `GET ${path}`).text('Id');
    },
    loadImage: async (tar, signal) => {
      const call = 'POST /images/load';
      const { body } = await mutate('POST', '/images/load', signal, {
        tar,
        timeoutMs: loadImageMs,
        query: { quiet: '1' },
      });
      return parseLoadedImages(body, call);
    },
    events: (query, signal) => {
      const filters = JSON.stringify({ type: query.types });
      const since = query.since === undefined ? {} : { since: (query.since / 1_000).toFixed(3) };
      const out = { ...requestTo('GET', '/events'), query: { filters, ...since } };
      return withApiVersion(out, signal, async (full) => parseEvents(await http.openStream(full, signal), out, signal));
    },
    [Symbol.dispose]: () => http[Symbol.dispose](),
  };
}

const pathSegment = (name: string): string => {
  if (name === '' || name === '.' || name === '..') throw new TypeError(`“${name}” is not a valid name`);
  return encodeURIComponent(name);
};

const requestTo = (method: EngineRequest['method'], path: string): EngineRequest => ({
  call: `${method} ${path}`,
  method,
  path,
  timeoutMs: defaultCallMs,
  maxBytes: mib,
});

/** The engine may have been restarted with another version, or reports that it does not support ours. */
const mayHaveChangedVersion = ({ failure, status, engineMessage }: DockerError): boolean =>
  failure === 'unreachable' || failure === 'lost' || (status === 400 && engineMessage.includes('client version'));

async function* parseEvents(
  stream: AsyncIterable<Uint8Array>,
  out: EngineRequest,
  signal: AbortSignal,
): AsyncGenerator<EngineEvent, void, undefined> {
  try {
    const lines = linesIn(stream, maxEventBytes, (why) => garbledError(out.call, why));
    for await (const line of lines) yield eventOf(parseBody(line, out.call), out.call);
  } catch (thrown) {
    throw failureOf(out, thrown, signal);
  }
}

function infoOf(answer: unknown, call: string): EngineInfo {
  const fields = fieldsOf(answer, call);
  return {
    id: fields.optionalText('ID'),
    name: fields.optionalText('Name'),
    root: fields.optionalText('DockerRootDir'),
    securityOptions: fields.texts('SecurityOptions'),
    liveRestore: fields.optionalFlag('LiveRestoreEnabled'),
  };
}

function networkOf(answer: unknown, call: string): Network {
  const fields = fieldsOf(answer, call);
  return {
    id: fields.text('Id'),
    name: fields.text('Name'),
    driver: fields.text('Driver'),
    internal: fields.flag('Internal'),
    labels: fields.textMap('Labels'),
    subnets: fields
      .optionalObject('IPAM')
      .objects('Config')
      .map((one) => one.optionalText('Subnet')),
  };
}

/** The engine sends one line per step, and errors among them: it sends the HTTP status before it reads the image. */
function parseLoadedImages(body: string, call: string): readonly string[] {
  const lines = body.split('\n').filter((line) => line.trim() !== '');
  return lines.flatMap((line) => {
    const fields = fieldsOf(parseBody(line, call), call);
    const error = fields.optionalText('error');
    if (error !== '') throw new DockerError(`${call}: ${error}`, { failure: 'refused', engineMessage: error });
    const found = /^Loaded image(?:\(s\)| ID)?: (.+)$/.exec(fields.optionalText('stream').trim());
    if (found === null) return [];
    const [, names] = found;
    if (names === undefined) throw garbledError(call, 'a loaded image has no name');
    return names.split(',').map((name) => name.trim());
  });
}
