import { type Fields, fieldsOf, listOf } from './fields.ts';

export interface ContainerMount {
  /** For example `volume`, `bind` or `tmpfs`. */
  readonly type: string;
  /** The name of a volume. */
  readonly name: string;
  readonly driver: string;
  readonly source: string;
  readonly destination: string;
}

export interface ListedContainer {
  readonly id: string;
  /** Without the leading slash of the API. */
  readonly names: readonly string[];
  readonly image: string;
  readonly state: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly mounts: readonly ContainerMount[];
}

export interface ContainerNetwork {
  readonly networkId: string;
  /** Empty if it has none. */
  readonly address: string;
}

export interface Container {
  readonly id: string;
  readonly name: string;
  /** The id of its image. */
  readonly image: string;
  readonly state: {
    readonly status: string;
    readonly running: boolean;
    /** In the engine's process namespace; 0 if it is not running. */
    readonly pid: number;
    readonly exitCode: number;
    readonly error: string;
  };
  readonly labels: Readonly<Record<string, string>>;
  readonly mounts: readonly ContainerMount[];
  /** The path of its network namespace on the engine's host; empty if there is none. */
  readonly sandbox: string;
  /** `host`, `none`, `container:ID`, or a network's name; empty if the engine does not report it. */
  readonly networkMode: string;
  /** By name. For a stopped container, the networks that it will be attached to. */
  readonly networks: Readonly<Record<string, ContainerNetwork>>;
}

export interface ContainerSpec {
  readonly image: string;
  readonly command?: readonly string[];
  readonly entrypoint?: readonly string[];
  readonly env?: readonly string[];
  readonly user?: string;
  readonly labels?: Readonly<Record<string, string>>;
  /** False disables the image's health check, too. */
  readonly healthcheck?: false;
  /** How long it may take to stop before the engine kills it. */
  readonly stopSeconds?: number;
  readonly host?: {
    /** `host:container[:options]` */
    readonly binds?: readonly string[];
    /** A network's name, `none`, `host` or `container:ID`. */
    readonly network?: string;
    readonly capAdd?: readonly string[];
    readonly capDrop?: readonly string[];
    readonly securityOptions?: readonly string[];
    readonly devices?: readonly string[];
    readonly readOnly?: boolean;
    readonly restart?: 'no' | 'always' | 'unless-stopped' | 'on-failure';
    readonly autoRemove?: boolean;
    /** The engine runs an init process as PID 1. */
    readonly init?: boolean;
    /** Paths at which an empty tmpfs is mounted. */
    readonly tmpfs?: readonly string[];
    /** From -1000 (never killed when memory is short) to 1000. */
    readonly oomScore?: number;
    /** By name, for example `memlock`; -1 means unlimited. */
    readonly limits?: Readonly<Record<string, number>>;
  };
}

const withoutSlash = (name: string): string => name.replace(/^\//, '');

export function listedContainers(answer: unknown, call: string): readonly ListedContainer[] {
  return listOf(answer, call).map((one) => ({
    id: one.text('Id'),
    names: one.texts('Names').map(withoutSlash),
    image: one.optionalText('Image'),
    state: one.text('State'),
    labels: one.textMap('Labels'),
    mounts: one.objects('Mounts').map(mountOf),
  }));
}

export function containerOf(answer: unknown, call: string): Container {
  const fields = fieldsOf(answer, call);
  const state = fields.object('State');
  const network = fields.optionalObject('NetworkSettings');
  const networks = network.optionalObject('Networks').entries();
  return {
    id: fields.text('Id'),
    name: withoutSlash(fields.text('Name')),
    image: fields.text('Image'),
    state: {
      status: state.text('Status'),
      running: state.flag('Running'),
      pid: state.count('Pid'),
      exitCode: state.count('ExitCode'),
      error: state.optionalText('Error'),
    },
    labels: fields.optionalObject('Config').textMap('Labels'),
    mounts: fields.objects('Mounts').map(mountOf),
    sandbox: network.optionalText('SandboxKey'),
    networkMode: fields.optionalObject('HostConfig').optionalText('NetworkMode'),
    networks: Object.fromEntries(
      networks.map(([name, one]) => [
        name,
        { networkId: one.optionalText('NetworkID'), address: one.optionalText('IPAddress') },
      ]),
    ),
  };
}

const mountOf = (one: Fields): ContainerMount => ({
  type: one.text('Type'),
  name: one.optionalText('Name'),
  driver: one.optionalText('Driver'),
  source: one.optionalText('Source'),
  destination: one.optionalText('Destination'),
});

/** The body of a create call. The engine chooses defaults for missing fields. */
export function createBody(spec: ContainerSpec): object {
  const { image, command, entrypoint, env, user, labels, healthcheck, stopSeconds, host = {} } = spec;
  const devices = host.devices?.map((path) => ({
    PathOnHost: path,
    PathInContainer: path,
    CgroupPermissions: 'rwm',
  }));
  return {
    Image: image,
    Cmd: command,
    Entrypoint: entrypoint,
    Env: env,
    User: user,
    Labels: labels,
    Healthcheck: healthcheck === false ? { Test: ['NONE'] } : undefined,
    StopTimeout: stopSeconds,
    HostConfig: {
      Binds: host.binds,
      NetworkMode: host.network,
      CapAdd: host.capAdd,
      CapDrop: host.capDrop,
      SecurityOpt: host.securityOptions,
      Devices: devices,
      ReadonlyRootfs: host.readOnly,
      Init: host.init,
      RestartPolicy: host.restart === undefined ? undefined : { Name: host.restart },
      AutoRemove: host.autoRemove,
      OomScoreAdj: host.oomScore,
      Tmpfs: host.tmpfs === undefined ? undefined : Object.fromEntries(host.tmpfs.map((path) => [path, ''])),
      Ulimits: Object.entries(host.limits ?? {}).map(([Name, most]) => ({ Name, Soft: most, Hard: most })),
    },
  };
}
