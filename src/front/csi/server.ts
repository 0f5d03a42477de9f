import type { Clock } from '#base/clock.ts';
import type { Log } from '#base/log.ts';
import type { Core } from '#core/core.ts';
import type { CsiDriver } from '#core/csi-drivers.ts';
import { Controller, Identity, Node } from '#wire/csi/generated/csi.ts';
import { Registration } from '#wire/csi/generated/registration.ts';
import { createMethods } from '#wire/csi/grpc.ts';
import { createGrpcServer, type GrpcServer } from '#wire/csi/server.ts';
import { controllerOf } from './controller.ts';
import type { DriverContext } from './driver-context.ts';
import { cancellationErrors, statusReporter } from './grpc-status.ts';
import { identityOf } from './identity.ts';
import { nodeOf } from './node.ts';
import { registrationOf } from './registration.ts';
import { createRunExclusive } from './run-exclusive.ts';
import { createUsageCounter } from './usage-counter.ts';

export interface CsiOptions {
  readonly core: Core;
  readonly driver: CsiDriver;
  readonly clock: Clock;
  readonly log: Log;
  readonly version: string;
  readonly spaceOf: DriverContext['spaceOf'];
  readonly podUsers?: DriverContext['podUsers'];
  readonly maxVolumes?: number | undefined;
  /** Called after every call. `method` is the short name, such as `NodeStageVolume`; `code` is the gRPC status code. */
  readonly observed?: ((call: CsiCall) => void) | undefined;
}

export interface CsiCall {
  readonly driver: string;
  readonly method: string;
  readonly code: number;
  readonly seconds: number;
}

/** The CSI server of one driver. It only translates requests to calls of core. */
export function createCsiServer(options: CsiOptions): GrpcServer {
  const { clock, driver, core } = options;
  const log = options.log.with({ driver: driver.name });
  const usageCounter = createUsageCounter({ volumes: core.volumes, clock, log });
  const ctx: DriverContext = { ...options, log, runExclusive: createRunExclusive(), usageCounter };
  const methods = new Map([
    ...createMethods(Identity, identityOf(ctx)),
    ...createMethods(Controller, controllerOf(ctx)),
    ...createMethods(Node, nodeOf(ctx)),
  ]);
  const onCallEnd = (method: string, code: number, seconds: number): void =>
    options.observed?.({ driver: driver.name, method: method.split('/').at(-1) ?? method, code, seconds });
  const served = createGrpcServer({
    methods,
    clock,
    statusOf: statusReporter(log),
    abortReasons: cancellationErrors,
    onCallEnd: onCallEnd,
  });
  return {
    server: served.server,
    close: async (graceMs) => {
      usageCounter.end();
      await served.close(graceMs);
    },
  };
}

/** `endpoint`: the path of the driver's own socket, as the kubelet sees it. */
export function createRegistrationServer(options: {
  readonly driver: CsiDriver;
  readonly endpoint: string;
  readonly clock: Clock;
  readonly log: Log;
}): GrpcServer {
  const { driver, endpoint, clock, log } = options;
  const methods = createMethods(Registration, registrationOf(driver, endpoint, log));
  return createGrpcServer({ methods, clock, statusOf: statusReporter(log) });
}
