import { BlockList, isIP } from 'node:net';

/**
 * Returns a check whether an address is in one of the networks: `10.0.0.0/8`, `fd00::/8`, or single addresses. Without networks,
 * all addresses are allowed.
 */
export function createMayConnect(networks: readonly string[]): (address: string) => boolean {
  if (networks.length === 0) return () => true;
  const list = new BlockList();
  for (const network of networks) {
    const { address, prefix, family } = parseNetwork(network);
    list.addSubnet(address, prefix, family);
  }
  return (address) => {
    // Remove the interface of a link-local address.
    const plain = address.replace(/%.*$/, '');
    const version = isIP(plain);
    return version !== 0 && list.check(plain, version === 6 ? 'ipv6' : 'ipv4');
  };
}

function parseNetwork(text: string): {
  readonly address: string;
  readonly prefix: number;
  readonly family: 'ipv4' | 'ipv6';
} {
  const [address = '', length, ...rest] = text.split('/');
  const version = isIP(address);
  const max = version === 6 ? 128 : 32;
  const prefix = length === undefined ? max : /^\d{1,3}$/.test(length) ? Number(length) : Number.NaN;
  if (version === 0 || rest.length > 0 || !(prefix <= max))
    throw new Error(`${JSON.stringify(text)} is not a network: write it as 10.0.0.0/8, fd00::/8 or 192.168.1.7`);
  return { address, prefix, family: version === 6 ? 'ipv6' : 'ipv4' };
}
