import { DockerError } from './errors.ts';
import { fieldsOf } from './fields.ts';

export interface Version {
  /** The version of the engine. */
  readonly version: string;
  readonly api: string;
  readonly oldestApi: string;
  /** The components that it reports: Docker has an `Engine`, Podman a `Podman Engine`. */
  readonly components: readonly string[];
}

export function versionOf(answer: unknown, call: string): Version {
  const fields = fieldsOf(answer, call);
  const api = fields.text('ApiVersion');
  return {
    version: fields.text('Version'),
    api,
    oldestApi: fields.optionalText('MinAPIVersion') || api,
    components: fields.objects('Components').map((one) => one.text('Name')),
  };
}

/**
 * The API version that this client is written for. Docker 20.10 and Podman 4 support it, and the calls in use have not changed
 * since.
 */
const preferredApi = '1.41';

/**
 * Returns our version if the engine supports it. If the engine has dropped it, returns the engine's oldest version. Fails if the
 * engine is older than our version.
 */
export function chooseApiVersion({ version, api, oldestApi }: Version, call: string): string {
  if (!isVersion(api) || !isVersion(oldestApi)) {
    throw new DockerError(`${call}: ${api} and ${oldestApi} are not API versions`, { failure: 'garbled' });
  }
  if (compare(api, preferredApi) < 0) {
    const why = `version ${version} speaks API ${api}, and ${preferredApi} is needed (Docker 20.10, Podman 4)`;
    throw new DockerError(`${call}: ${why}`, { failure: 'refused', engineMessage: why });
  }
  return compare(oldestApi, preferredApi) > 0 ? oldestApi : preferredApi;
}

const isVersion = (text: string): boolean => /^\d{1,4}\.\d{1,4}$/.test(text);

function compare(a: string, b: string): number {
  const [[majorA = 0, minorA = 0], [majorB = 0, minorB = 0]] = [a.split('.').map(Number), b.split('.').map(Number)];
  return majorA - majorB || minorA - minorB;
}
